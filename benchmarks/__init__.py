"""What fakexport claims in numbers. Each case checks that a result is right before it counts or times it."""

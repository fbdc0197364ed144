"""Models of transformers: configs, classes, and example inputs."""

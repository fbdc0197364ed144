"""Models of diffusers: configs and example inputs."""

"""Example inputs for images, audio and videos."""

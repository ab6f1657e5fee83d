"""One file a family of architectures: `ARCHITECTURES` that it serves, and `decoder(config, name, architecture)`."""

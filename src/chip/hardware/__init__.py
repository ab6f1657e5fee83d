"""What is known of the hardware: datasheets and measured profiles of GPUs, hosts, links between GPUs, rooflines, and
the import of other people's tables."""

"""What is kept on disk: one file format, one reader, one writer, and the records that are written with them."""

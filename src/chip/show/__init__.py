"""What people see: commands, the report, the server and its pages."""

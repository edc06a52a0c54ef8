"""The machine around the package: devices, environment variables, progress bars, the C compiler."""

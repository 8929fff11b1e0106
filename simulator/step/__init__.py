"""The decode step as data: its operations, their order, their memory, and how they are launched."""

"""A folder whose name is the framework's; ``message_builder`` is in it."""

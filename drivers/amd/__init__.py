"""AMD GPUs from user space: discovery, boot, memory, queues."""

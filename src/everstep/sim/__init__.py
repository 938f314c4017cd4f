"""Virtual time: the brain, the desk and the watch of the live loop, driven by a heap instead of asyncio."""

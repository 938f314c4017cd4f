"""The live loop: observe, decide, record, act. asyncio lives here and above, never below."""

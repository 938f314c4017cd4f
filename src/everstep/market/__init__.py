"""Readers of public market data: availability traces, catalogs, price histories, lifetimes. One file per format."""

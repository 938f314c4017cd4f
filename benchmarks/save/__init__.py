"""Parts of the benchmark ``saving``: a training of a given state and step, and the ways to save it."""

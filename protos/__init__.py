"""Wire formats: torchft's lighthouse service and our own, with their generated stubs."""

"""One library a module, each with a class `Adapter`; a module imports its library and nothing of the others."""

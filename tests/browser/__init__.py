"""A package, since the browser lives as long as its tests do: pytest has no such scope for a mere folder."""

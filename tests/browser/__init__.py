"""A package, because the browser's fixture has the scope of a package, which pytest does not have for a mere folder."""

"""A server of translations: `padir serve`."""

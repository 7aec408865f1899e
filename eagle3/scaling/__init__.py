"""How much data is enough: acceptance length against training tokens, and what twice would give."""

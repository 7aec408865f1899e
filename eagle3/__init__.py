"""EAGLE-3: draft, training-time test, decoding, proof. Importing it imports nothing heavy."""

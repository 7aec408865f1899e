"""EAGLE-3: draft, training-time test, decoding, proof. Importing the package imports nothing heavy."""

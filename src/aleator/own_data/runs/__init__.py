"""A trained model on disk and in Python: the run folder, `AleatorModel`, `AleatorClassifier`, ONNX, the model card."""

"""The methods that the paper compares CapsNet with: CNN+OCSVM, VAE and DBN.

One file per method; `plain` holds what they share, `one_class_svm` the exact one-class SVM.
"""

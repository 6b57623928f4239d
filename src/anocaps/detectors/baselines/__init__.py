"""The methods that CapsNet is compared with: the paper's benchmarks and others that it names.

One file per method. `plain` and `pixels` are their base classes, `one_class_svm` is the exact SVM.
"""

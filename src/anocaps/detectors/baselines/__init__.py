"""The methods that CapsNet is compared with: the paper's benchmarks and others that it names.

One file per method. `plain` and `pixels` hold what they share, `one_class_svm` the exact SVM.
"""

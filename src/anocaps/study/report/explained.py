"""What each score of the page is, with its authors."""

from anocaps.study.report.numbers import Numbers
from anocaps.study.report.tables import Table, settings_table

# "ours" are scores that no paper proposed. Nothing is said about a user's own methods.
_SCORES = {
    ("capsnet", "pp"): "length of the longest class capsule (Li et al. 2019)",
    ("capsnet", "re"): "minus the squared reconstruction error, divided by the image's norm "
    "(Li et al. 2019)",
    ("capsnet", "pp+re"): "sum of PP and RE, each standardised over normal images (ours)",
    ("capsnet", "mse"): "minus the squared reconstruction error (ours)",
    ("capsnet", "knn"): "minus the distance to the nearest training images, in the space of class "
    "capsules (ours, after Sun et al. 2022)",
    ("capsnet", "stem-knn"): "minus the distance to the nearest training images, in the features "
    "under the capsules (ours, after Sun et al. 2022)",
    ("capsnet", "patch"): "minus the distance of patches to normal patches, in pretrained features "
    "(Roth et al. 2022)",
    ("capsnet", "combined"): "several of these scores, joined by their p-values (ours, after "
    "Fisher 1932)",
    ("matrix-capsnet", "pp"): "largest class activation of matrix capsules (Hinton et al. 2018)",
    ("matrix-capsnet", "re"): "minus the reconstruction error of matrix capsules, divided by the "
    "image's norm (Hinton et al. 2018)",
    ("cnn-ocsvm", "ocsvm"): "one-class SVM on the last hidden layer of a CNN (Schölkopf et al. "
    "2001)",
    ("cnn-scores", "softmax"): "largest class probability (Hendrycks and Gimpel 2017)",
    ("cnn-scores", "logit"): "largest logit (Hendrycks et al. 2022)",
    ("cnn-scores", "energy"): "log Σ exp of the logits (Liu et al. 2020)",
    ("cnn-scores", "knn"): "minus the distance to the nearest training images, in the last hidden "
    "layer (Sun et al. 2022)",
    ("cnn-scores", "mahalanobis"): "minus the distance to the nearest class mean, with one "
    "covariance for all classes (Lee et al. 2018)",
    ("vae", "re"): "minus the squared reconstruction error of a variational autoencoder (Kingma "
    "and Welling 2014)",
    ("vae", "nse"): "the same, divided by the image's norm (ours)",
    ("vae", "elbo"): "evidence lower bound, taken at the mean of z (ours)",
    ("vae-scores", "elbo"): "evidence lower bound (Kingma and Welling 2014)",
    ("vae-scores", "iwae"): "the tighter, importance-weighted bound (Burda et al. 2016)",
    ("vae-scores", "probability"): "reconstruction probability (An and Cho 2015)",
    ("vae-scores", "ocsvm"): "one-class SVM on the means of z (Schölkopf et al. 2001)",
    ("dbn", "re"): "minus the squared reconstruction error of a deep belief network (Hinton et al. "
    "2006)",
    ("dbn", "nse"): "the same, divided by the image's norm (ours)",
    ("dbn-scores", "energy"): "minus the free energy of the top machine (Hinton et al. 2006)",
    ("dbn-scores", "rbm"): "log-likelihood of the lowest restricted Boltzmann machine "
    "(Salakhutdinov and Murray 2008)",
    ("dbn-scores", "ocsvm"): "one-class SVM with a Gaussian kernel on the top layer (Schölkopf et "
    "al. 2001)",
    ("dbn-scores", "hyperplane"): "the same without a kernel (Schölkopf et al. 2001)",
    ("kde", "pixels"): "density of normal images, on pixels (Parzen 1962)",
    ("kde", "pca"): "the same on principal components (Parzen 1962)",
    ("svm", "rbf"): "one-class SVM (Schölkopf et al. 2001) on pixels with a Gaussian kernel, where "
    "it equals SVDD (Tax and Duin 2004)",
    ("svm", "hyperplane"): "one-class SVM on pixels without a kernel (Schölkopf et al. 2001)",
    ("svm", "hypersphere"): "SVDD on pixels without a kernel (Tax and Duin 2004)",
    ("deep-svdd", "distance"): "minus the distance of the code to a centre (Ruff et al. 2018)",
    ("geom", "dirichlet"): "Dirichlet likelihood of 72 recognised transformations (Golan and "
    "El-Yaniv 2018)",
    ("geom", "simple"): "mean log-probability of the right transformation (Golan and El-Yaniv "
    "2018)",
    ("anogan", "search"): "minus the distance to the most similar generated image (Schlegl et al. "
    "2017)",
}  # fmt: skip


def explained(numbers: Numbers) -> Table:
    """One line per score that was measured, under the label of its first variant."""
    labels: dict[tuple[str, str], str] = {}
    for series in numbers.every():
        labels.setdefault((series.method, series.score), series.look.label)
    return settings_table({label: _SCORES[key] for key, label in labels.items() if key in _SCORES})

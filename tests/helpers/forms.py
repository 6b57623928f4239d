"""The methods of the contract suite, with cheap settings."""

METHODS = (
    "capsnet", "cnn-ocsvm", "cnn-scores", "dbn", "dbn-scores", "vae", "vae-scores", "kde", "svm",
    "deep-svdd", "matrix-capsnet", "geom", "anogan",
)  # fmt: skip
# A cheap configuration for 8×8 images; each method takes those settings that it knows.
CHEAP = {
    "preset": "quick", "epochs": 2, "batch_size": 32, "device": "cpu", "calibration": 0.25,
    "width": 1,
}  # fmt: skip
OWN = {
    "anogan": {"search_steps": 5, "learning_rate": 2e-3},
    "matrix-capsnet": {"capsules": 4, "learning_rate": 2e-2},
}


# Methods in another form: method, settings. They see fewer images, as some cost more.
FORMS = {
    "capsnet, paper": ("capsnet", {"preset": "paper"}),
    "capsnet, paper-tuned": ("capsnet", {"preset": "paper-tuned"}),
    "capsnet, deep": ("capsnet", {"preset": "deep", "epochs": 5}),
    "capsnet, photo": ("capsnet", {"preset": "photo"}),
    "deep-svdd, soft boundary": ("deep-svdd", {"objective": "soft-boundary"}),
}
SIDE = {"capsnet, paper": 17, "capsnet, paper-tuned": 17}  # the smallest for 9×9 kernels twice
FEW = 30  # images of a class

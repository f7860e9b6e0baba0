"""What the algorithms compute with: vectors, precisions, quadratics, Gaussians, damping, hyper-parameters."""

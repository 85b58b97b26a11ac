"""Django commands of the control plane."""

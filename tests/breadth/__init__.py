"""Every pipeline class of the installed diffusers, with tiny random components, under the policy."""

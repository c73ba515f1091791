"""What was tried: every pipeline class of the installed diffusers, of tiny random components, under the policy."""

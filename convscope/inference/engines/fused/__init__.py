"""Modules of the engine `fused`: what a layer and what follows it become."""

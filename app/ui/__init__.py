"""The pages. Draws what the other rooms know and computes nothing itself."""

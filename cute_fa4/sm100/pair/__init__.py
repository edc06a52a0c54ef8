"""What two CTAs that share an MMA need, in any family."""

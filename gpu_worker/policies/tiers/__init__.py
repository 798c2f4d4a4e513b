"""Tiers: premium, standard and background over any queue policy, with aging and a guaranteed share."""

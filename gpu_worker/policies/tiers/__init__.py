"""Tiers over any queue policy: premium, standard and background, with aging and a guaranteed share."""

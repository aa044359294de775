-- Power of GPUs

-- a power below the limit of the board: a smooth minimum of both, in W
create macro held_w(power_w, cap_w, sharpness) as power_w / power(1 + power(greatest(power_w, 0) / cap_w, sharpness), 1 / sharpness);

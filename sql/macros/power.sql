-- Macro of GPU power

-- power under the board limit, in W: a smooth minimum of both
create macro held_w(power_w, cap_w, sharpness) as power_w / power(1 + power(greatest(power_w, 0) / cap_w, sharpness), 1 / sharpness);

-- Deployment that costs least at each confidence, and what it takes then
select question_id, confidence, place, instances, gpus, served, price_per_hour, cost_per_day
from size_costs
qualify row_number() over (partition by question_id, confidence order by cost, place) = 1
order by question_id, confidence

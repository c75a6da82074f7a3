import hailstorm as hs

storm = hs.Topology("trending", max_tick_rows="many")

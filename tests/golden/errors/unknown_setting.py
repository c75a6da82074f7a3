import hailstorm as hs

storm = hs.Topology("trending", latencyy="1 second")

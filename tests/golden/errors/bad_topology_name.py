import hailstorm as hs

storm = hs.Topology("../secrets")

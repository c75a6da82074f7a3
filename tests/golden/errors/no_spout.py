import hailstorm as hs

storm = hs.Topology("trending")
storm.validate()

import hailstorm as hs

storm = hs.Topology("shop")
storm.table("people", hs.Log("data/people"), schema="id INT, name STRING")

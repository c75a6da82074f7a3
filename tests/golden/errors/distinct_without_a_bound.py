import hailstorm as hs

storm = hs.Topology("shop")
orders = storm.spout("orders", hs.Log("data/orders"), schema="id INT, item STRING, at TIMESTAMP", event_time="at")
orders.distinct("once", by="id")

import hailstorm as hs

storm = hs.Topology("shop")
orders = storm.spout("orders", hs.Log("data/orders"), schema="id INT, item STRING, price INT, at TIMESTAMP")
views = storm.spout("views", hs.Log("data/views"), schema="item STRING, user STRING, at TIMESTAMP")
prices = storm.table("prices", hs.Log("data/prices"), schema="item STRING, price INT", key="item")
orders.lookup("counted", views.fold("counts", by="item", n=hs.count()), on="item", as_of="event time")

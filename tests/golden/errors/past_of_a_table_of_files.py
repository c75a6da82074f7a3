import hailstorm as hs

storm = hs.Topology("shop")
orders = storm.spout("orders", hs.Log("data/orders"), schema="id INT, item STRING")
lines = storm.spout("lines", hs.Files("data/*.csv"), schema="item STRING, price INT, since TIMESTAMP", decode="csv")
prices = lines.table("prices", key="item", at="since")
orders.lookup("priced", prices, on="item", as_of="event time")

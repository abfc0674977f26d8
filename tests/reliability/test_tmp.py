from tests.reliability.conftest import Site
import time
async def test_it(site: Site):
    t=time.time()
    site.killed("start","tool","acted")
    print(time.time()-t)
    p=site.process("resume","tool")
    print(p.end(), time.time()-t)
    print(site.world.effects, site.world.calls, len(await site.rows()), time.time()-t)

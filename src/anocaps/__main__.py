from anocaps.cli import main

main()

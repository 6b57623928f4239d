from anocaps.cli.main import main

main()
